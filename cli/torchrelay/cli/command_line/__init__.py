"""What the command line asks for: how options are declared, checked, and told to controller and agent."""
