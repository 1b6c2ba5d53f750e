"""Does the plan of a projection keep keys apart, and is its result the same each time?"""
