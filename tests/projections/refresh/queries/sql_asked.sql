/* projection
# Queries in conditions and values, each of which Spark makes a join of.
key = "customer_id"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"
*/
SELECT c.id AS customer_id,
       c.city,
       (SELECT max(o.amount) FROM orders o WHERE o.customer_id = c.id AND o.status <> 'cancelled') AS most
FROM customers c
WHERE (EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id AND o.quantity > 1) AND c.name IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id AND o.status = 'sent')
  AND c.id IN (SELECT o.customer_id FROM orders o GROUP BY o.customer_id HAVING count(*) < 5)
