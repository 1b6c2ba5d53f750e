-- Left join, then aggregates. What its inputs affect follows from the text.
/* projection
key = "customer_id"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = { state = "shop.public.orders", columns = ["customer_id", "amount", "status"] }
*/
SELECT c.id AS customer_id,
       c.name,
       count(o.customer_id) AS orders,
       sum(o.amount) FILTER (WHERE o.status <> 'cancelled') AS total,
       max(o.amount) AS most
FROM customers AS c
LEFT JOIN orders AS o ON c.id = o.customer_id
GROUP BY c.id, c.name
