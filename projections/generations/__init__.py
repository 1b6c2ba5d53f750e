"""What is kept of each generation of a projection, and what changed between two epochs?"""
