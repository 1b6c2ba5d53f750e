-- Written by the release before migration 0003.
INSERT INTO tailrace.streams VALUES ('account', '42', '3');
INSERT INTO tailrace.streams VALUES ('account', 'it''s', '1');
INSERT INTO tailrace.streams VALUES ('account', 'refused', '0');
INSERT INTO tailrace.events VALUES ('account', '42', '1', 'golden_deposited', '1', E'{"at": "2026-01-02T00:00:00Z", "notes": ["\\"", "é", ""], "amount": "12345678901234567890.0010"}', '{}', '00000000-0000-0000-0000-000000000001', '2026-11-25T22:49:52.257995+00:00');
INSERT INTO tailrace.events VALUES ('account', '42', '2', 'golden_deposited', '1', '{"at": null, "notes": [], "amount": "1"}', '{}', '00000000-0000-0000-0000-000000000002', '2026-11-25T22:49:52.25811+00:00');
INSERT INTO tailrace.events VALUES ('account', '42', '3', 'golden_withdrawn', '2', '{"amount": "3"}', '{"by": "ü"}', '00000000-0000-0000-0000-000000000003', '2026-11-25T22:49:52.260393+00:00');
INSERT INTO tailrace.events VALUES ('account', 'it''s', '1', 'golden_deposited', '1', '{"at": null, "notes": [], "amount": "0.5"}', '{}', '00000000-0000-0000-0000-000000000004', '2026-11-25T22:49:52.263389+00:00');
