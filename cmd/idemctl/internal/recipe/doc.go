// Package recipe has the commands that use ZooKeeper's recipes from a shell: lock, semaphore,
// elect and queue. Each gets the ensemble and the streams alone.
package recipe
