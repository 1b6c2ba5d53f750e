"""``tailrace store …``"""
