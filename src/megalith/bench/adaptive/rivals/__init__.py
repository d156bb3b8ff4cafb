"""Other ways to make embedding tables small, each as tables that a learner trains like any others."""
