// Package engines tests the constructors of engines that need a driver.
package engines
