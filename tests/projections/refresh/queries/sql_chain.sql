/* projection
# Names without their tables. The key is the customer's, orders are found through customers, and products through orders.
key = "city"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"
products = "shop.public.products"
*/
SELECT city, count(customer_id) AS orders, count(DISTINCT product_id) AS products, max(price) AS dearest
FROM customers LEFT JOIN orders ON customer_id = customers.id LEFT JOIN products ON product_id = products.id
WHERE city IS NOT NULL
GROUP BY city
