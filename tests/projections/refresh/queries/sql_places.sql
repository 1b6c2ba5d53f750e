/* projection
# A key that is computed, never NULL; orders go where their customer goes.
key = "place"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = { state = "shop.public.customers", columns = ["id", "city"] }
orders = "shop.public.orders"
*/
SELECT coalesce(c.city, 'unknown') AS place, count(DISTINCT c.id) AS customers, sum(o.amount) AS total
FROM customers c LEFT JOIN orders o ON o.customer_id = c.id
GROUP BY coalesce(c.city, 'unknown')
