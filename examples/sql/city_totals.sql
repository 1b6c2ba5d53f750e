-- What each city's customers bought, over the tables of `make demo`.
-- To have it: [projections] sql = ["sql"] in tailrace.toml, then tailrace projection check, tailrace run.

/* projection
key = "city"
sink = { kind = "postgres", sink = "mart", table = "city_totals" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"
*/

SELECT customers.city,
       count(DISTINCT customers.id) AS customers,
       count(orders.id) AS orders,
       sum(orders.amount) AS total
FROM customers
LEFT JOIN orders ON orders.customer_id = customers.id AND orders.status <> 'cancelled'
WHERE customers.city IS NOT NULL
GROUP BY customers.city
