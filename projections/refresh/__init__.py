"""What does a refresh have to do, and how is one step taken?"""
