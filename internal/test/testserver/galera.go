package testserver

import (
	"os"
	"path/filepath"
	"testing"
)

// StartGalera starts a server of MariaDB as the only node of a Galera cluster, which certifies each transaction as one of many does. Unless
// EnvRoot has Galera, the test is skipped as not run here.
func StartGalera(tb testing.TB) *MariaDB {
	tb.Helper()
	needsServer(tb)
	provider := filepath.Join(os.Getenv(EnvRoot), "usr/lib/galera/libgalera_smm.so")
	if _, err := os.Stat(provider); err != nil {
		tb.Skip(NotRunHere + "there is no Galera to start: see make matrix")
	}
	held, err := reservePorts(2)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(held.release)
	group, transfer := loopback(held.nums[0]), loopback(held.nums[1])
	return startMariaDB(tb, mariadb, []string{
		"--innodb-flush-method=nosync", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON", "--wsrep-provider=" + provider,
		"--wsrep-cluster-address=gcomm://", "--wsrep-new-cluster", "--wsrep-node-address=127.0.0.1", "--wsrep-sst-method=skip",
		"--wsrep-provider-options=gmcast.listen_addr=tcp://" + group + ";ist.recv_addr=" + transfer + ";gcache.size=16M",
	})
}
