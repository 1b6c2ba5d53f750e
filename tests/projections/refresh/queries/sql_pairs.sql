/* projection
key = "customer_id"
sink = { kind = "parquet", sink = "lake" }

[inputs]
orders = "shop.public.orders"
customers = "shop.public.customers"
*/
-- An input that is read twice, a join by USING, a union: every reading leads to the key by the same column.
WITH pairs AS (
    SELECT o.customer_id, count(*) AS pairs
    FROM orders o JOIN orders later ON o.customer_id = later.customer_id AND o.id < later.id
    GROUP BY 1
),
known AS (
    SELECT id AS customer_id, name FROM customers
    UNION ALL
    SELECT customer_id, status FROM orders WHERE status = 'paid' AND customer_id IS NOT NULL
)
SELECT customer_id, max(name) AS word, max(pairs) AS pairs
FROM known LEFT JOIN pairs USING (customer_id)
GROUP BY customer_id
