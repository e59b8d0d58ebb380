module github.com/idemkeeper/idemkeeper/examples/stripe

go 1.26.0

require (
	github.com/idemkeeper/idemkeeper v0.0.0
	github.com/stripe/stripe-go/v85 v85.0.0
)

replace github.com/idemkeeper/idemkeeper => ../..
