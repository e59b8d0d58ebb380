// Package queue has a persistent first-in-first-out queue on the session of a zookeeper.Client.
// Every change is applied once or not at all, even if replies are lost (package internal/once).
//
// # Reading order
//
// queue.go has the type and its limits. elements.go is the list of a session. offer.go adds
// elements. take.go picks elements from the list and removes them. delivery.go locks them.
package queue
