"""``tailrace log …``"""
