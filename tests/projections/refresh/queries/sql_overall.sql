/* projection
# One total: its key is a constant.
key = "of"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"
*/
SELECT 'all' AS of, count(*) AS orders, sum(amount) AS total, count(DISTINCT customers.city) AS cities
FROM orders JOIN customers ON orders.customer_id = customers.id
