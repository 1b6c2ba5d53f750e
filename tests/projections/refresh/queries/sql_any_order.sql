/* projection
# Tables with commas in an order in which nothing leads from one to the next, and a query inside a query.
key = "city"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"
products = "shop.public.products"
*/
SELECT city, count(*) AS orders, sum(amount * price) AS worth
FROM products, customers, orders
WHERE product_id = products.id AND customer_id = customers.id AND city IS NOT NULL
AND EXISTS (
    SELECT 1 FROM orders AS others
    WHERE others.id = orders.id AND amount < 100 * (SELECT max(price) FROM products AS all_of_it WHERE id = product_id)
)
GROUP BY city
