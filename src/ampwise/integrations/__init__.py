"""Where ampwise meets other libraries of training: what it measured in their form, and itself in their loops."""
