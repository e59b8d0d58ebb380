// A module of its own, because the checker of histories must not become a dependency of the library. It stands here,
// because it uses what the tests below lock/zookeeper share.
module github.com/idemkeeper/idemkeeper/lock/zookeeper/histories

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/idemkeeper/idemkeeper v0.1.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/go-zookeeper/zk v1.0.4 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
