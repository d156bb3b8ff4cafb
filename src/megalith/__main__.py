"""`python -m megalith`, and `torchrun -m megalith`."""

from megalith.cli import main

if __name__ == "__main__":
    main()
