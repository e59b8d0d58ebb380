// Package queue has a persistent queue on the session of a zookeeper.Client: first in,
// first out. Every change is applied once or not at all, also when replies are lost (package
// internal/once).
package queue
