/* projection
key = "city"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"          # goes where its customer goes
*/
WITH sums AS (
    SELECT customer_id, sum(amount) AS amount FROM orders GROUP BY customer_id
)
SELECT city, count(*) AS customers, sum(sums.amount) AS total
FROM customers LEFT JOIN sums ON customers.id = sums.customer_id
WHERE city IS NOT NULL
GROUP BY city
