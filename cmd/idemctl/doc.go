// Command idemctl is the operator's command line: what the token store knows
// of a key, which outcomes are open, and what only an operator can settle: an
// unknown outcome, a store that lost its records, a lock domain that is gone for
// good; a look at the servers; and ZooKeeper's recipes for scripts: a lock, a
// semaphore, an election, a queue.
//
//	idemctl --redis redis://127.0.0.1:6379 record list --state unknown --older-than 1m
//	idemctl --redis redis://127.0.0.1:6379 record show --scope merchant_demo order-17
//	idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 record resolve --scope merchant_demo order-17 --applied answer.json
//	idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 store accept
//	idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 doctor
//	idemctl --zookeeper 127.0.0.1:2181 lock --timeout 5s /jobs/nightly -- ./nightly.sh
//
// Exit codes: 0 done; 1 failed; 2 wrong use; 75 not acquired, nothing there,
// or timed out; lock and semaphore exit as the command does that they run.
// Results go to standard output, everything else to standard error. Keys are
// shown nowhere, only their IDs; a token only to whom it is issued.
package main
