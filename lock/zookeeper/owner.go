package zookeeper

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/idemkeeper/idemkeeper/idem"
)

// owner is what a lock znode says of its holder: for operators, and to tell
// which attempt made it.
type owner struct {
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Instance string `json:"instance"` // a Client; a new one after every start
	Nonce    string `json:"nonce"`    // the attempt, as the caller named it
	// Try counts the creates of an instance, so that (Instance, Try) is never
	// the same twice even when a caller uses a nonce again.
	Try string `json:"try"`
}

func (o owner) encode() []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic("zookeeper: strings and ints always marshal: " + err.Error())
	}
	return data
}

// parseOwner reads what encode wrote; anything else is an owner of no name.
func parseOwner(data []byte) owner {
	var o owner
	if json.Unmarshal(data, &o) != nil {
		return owner{}
	}
	return o
}

func (o owner) same(p owner) bool {
	return o.Instance != "" && o.Instance == p.Instance && o.Try == p.Try
}

func (o owner) String() string {
	if o.Instance == "" {
		return "an unknown owner"
	}
	return o.Host + " (pid " + strconv.Itoa(o.PID) + ", instance " + o.Instance + ")"
}

// identity is the owner that all locks of a Client share.
func identity() owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return owner{Host: host, PID: os.Getpid(), Instance: newUUID()}
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails (crypto/rand, since Go 1.24)
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// lockPath is where the lock of a key ID is: two levels, because one flat
// parent of all locks would overflow its child counter (see doc.go).
func (c *Config) lockPath(id idem.KeyID) string {
	hex := id.String() // its first three digits are one of parents
	return c.Chroot + c.Root + "/" + hex[:3] + "/" + hex[3:]
}

func (c *Config) membersPath() string { return c.Chroot + c.Base + "/members" }

// domainOf is the lock domain of an ensemble with this UUID. Locks under
// different roots do not exclude each other, so they must not look as if they
// were of one domain: the lock of one would prove nothing about the other's.
func (c *Config) domainOf(uuid string) string {
	if c.Root == defaultRoot {
		return uuid
	}
	return uuid + c.Root
}

func (c *Config) domainPath() string { return c.Chroot + c.Base + "/domain" }

// basePath is where the users of a root agree on Config.Base. No lock's parent is
// called so.
func (c *Config) basePath() string { return c.Chroot + c.Root + "/base" }
