"""``tailrace source …``"""
