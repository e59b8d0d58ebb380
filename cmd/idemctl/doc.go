// Command idemctl is the operator's command line. It shows what the token store
// knows of a key and which outcomes are open. It settles what only an operator can
// settle, an unknown outcome, a store that lost its records, or a lock domain that is
// gone for good. It checks the servers. For scripts it offers a lock, a semaphore, an
// election and a queue in ZooKeeper.
//
//	idemctl --redis redis://127.0.0.1:6379 record list --state unknown --older-than 1m
//	idemctl --redis redis://127.0.0.1:6379 record show --scope merchant_demo order-17
//	idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 record resolve --scope merchant_demo order-17 --applied answer.json
//	idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 store accept
//	idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 doctor
//	idemctl --zookeeper 127.0.0.1:2181 lock --timeout 5s /jobs/nightly -- ./nightly.sh
//
// The exit code is 0 for done, 1 for failed, 2 for wrong use, and 75 for not
// acquired, nothing there or timed out. lock and semaphore exit as their command
// does. Results go to standard output, everything else to standard error. idemctl
// shows the IDs of keys and never the keys, and a token only when it issues it.
//
// This package only parses the command line. Below internal, each group of commands is a
// package: record (with answer), store, token, doctor, and recipe for lock, semaphore, elect
// and queue. No group knows another one. They share servers, which has the global flags and
// the connections, and cli, which has the streams and the exit codes.
package main
