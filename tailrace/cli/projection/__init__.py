"""``tailrace projection …``"""
