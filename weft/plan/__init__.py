"""What a program costs on hardware one need not own: its time and memory, the best layout, and a page that shows it."""
