"""What is a projection, and what is wrong with this one?"""
