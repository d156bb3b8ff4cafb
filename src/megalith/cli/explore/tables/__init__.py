"""What the commands of `megalith explore` print for people, a module for each command."""
