/* projection
# Constants: values over another input, over the one around them, and over a query that both read.
key = "customer_id"
sink = { kind = "parquet", sink = "lake" }

[inputs]
orders = "shop.public.orders"
products = "shop.public.products"
*/
WITH spent AS (
    SELECT customer_id, max(amount) AS most, count(*) AS orders FROM orders WHERE customer_id IS NOT NULL GROUP BY customer_id
)
SELECT s.customer_id, s.most, (SELECT max(p.price) FROM products p) AS dearest
FROM spent s
WHERE (s.most >= (SELECT max(most) FROM spent) OR s.orders > (SELECT min(p.price) FROM products p))
  AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = s.customer_id AND o.amount < (SELECT min(a.amount) FROM orders a))
