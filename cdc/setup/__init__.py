"""What will be captured, what not and why, and what has to be made in the source first?"""
