// Package load measures one Gin route under load, with Idemkeeper and with its peers.
//
//	make load DELAY=1ms                                      # everything over a network, about half an hour
//	make load                                                # everything on loopback, as long
//	make load C=64 CASES=plain,idemkeeper-zookeeper ROUNDS=3 # a part
//	make load C=64 CASES=idemkeeper-zookeeper PROFILE=bin/service.pprof
//
// It prints a table and lines "RATIO name value goal verdict". docs/performance.md says
// how to read them.
//
// # How it is measured
//
// Each case has a service, a process of its own with the route POST /pay and a trivial
// handler. A load generator, one more process, sends requests over connections that stay
// open. Each connection sends its next request when the last one was answered. The
// servers are started for the run, ZooKeeper as in production. PostgreSQL and MariaDB do not sync to disk,
// because that would hide what a joined record adds. Their processor time is not measured.
//
// With a delay, a proxy stands between the services and all servers. It is one more process, whose
// processor time does not count. It counts the trips of single requests before the first round, see trips.
//
// A round measures every case at every number of connections, one after the other, and
// each round starts with another case, so a busy machine slows all of them down. Every
// figure is the median of the rounds. A round that does not count comes first, because
// the Java virtual machine compiles the code of ZooKeeper during its first requests. The
// report tells how much of the processors other processes used.
//
// A window begins after a warm-up. At its begin and its end the generator reads the
// processor time of the service and of the servers from the kernel. The difference, divided
// by the requests of the window, is the processor time per request. The generator's own
// time does not count, but it uses the same processors. So a rate is that of a machine that
// also makes the load. Compare it within a run only.
//
// The generator refuses every answer except 201, and compares how often the handler ran
// with the requests that it sent. So no case measures errors, or replays by mistake.
//
// # Adding a case
//
// A case is a row of the table in cases.go and a flow: flows.go has those with ZooKeeper and Redis, business.go, ownflows.go and joinedflows.go
// those with a database. A goal is a row of the table in goals.go.
package load
