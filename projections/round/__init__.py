"""What do projections that are brought to one position share of what is read there?"""
