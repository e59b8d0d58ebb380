package testserver

import (
	"fmt"
	"strings"
)

// CutOff ends the replication from primary to r, its replica, and keeps it
// ended until Rejoin or a restart: r lives, answers and may be promoted, and
// receives nothing, not even later. It returns once the primary has no such
// replica any more. (A paused replica would still read what the kernel has
// received for it.)
func (r *Redis) CutOff(primary *Redis) error {
	// A primary without a password refuses one, and the handshake ends there.
	if _, err := r.Do("CONFIG", "SET", "masterauth", "cut-off"); err != nil {
		return err
	}
	return poll(StartTimeout, nil, func() error {
		// Again, since a handshake may have been past that point.
		if _, err := primary.Do("CLIENT", "KILL", "TYPE", "replica"); err != nil {
			return err
		}
		link, err := redisField(r.addr, "master_link_status", "INFO", "replication")
		if err != nil {
			return err
		}
		info, err := primary.Do("INFO", "replication")
		if err != nil {
			return err
		}
		if link != "down" || strings.Contains(info[0], "port="+r.port()+",") {
			return fmt.Errorf("%s still replicates from %s, link %s", r.addr, primary.addr, link)
		}
		return nil
	})
}

// Rejoin undoes CutOff. r asks its primary for all it missed. It returns at once.
func (r *Redis) Rejoin() error {
	_, err := r.Do("CONFIG", "SET", "masterauth", "")
	return err
}

// AwaitReplica waits until the server has this replica online and heard of all
// its writes by it.
func (r *Redis) AwaitReplica(replica *Redis) error {
	return poll(StartTimeout, nil, func() error {
		link, err := redisField(replica.addr, "master_link_status", "INFO", "replication")
		if err != nil {
			return err
		}
		port, err := redisField(replica.addr, "master_port", "INFO", "replication")
		if err != nil {
			return err
		}
		if link != "up" || port != r.port() {
			return fmt.Errorf("%s replicates from port %s, link %s", replica.addr, port, link)
		}
		info, err := r.Do("INFO", "replication")
		if err != nil {
			return err
		}
		offset, err := redisField(r.addr, "master_repl_offset", "INFO", "replication")
		if err != nil {
			return err
		}
		if want := "port=" + replica.port() + ",state=online,offset=" + offset; !strings.Contains(info[0], want) {
			return fmt.Errorf("%s has no replica with %s", r.addr, want)
		}
		return nil
	})
}

func (r *Redis) port() string { return r.addr[strings.LastIndexByte(r.addr, ':')+1:] }
