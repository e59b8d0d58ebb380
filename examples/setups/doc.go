// Package setups has a service for each set-up that docs/choosing.md recommends.
package setups
