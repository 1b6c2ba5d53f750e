"""What is missing on this machine or in this configuration, and what to do about it?"""
