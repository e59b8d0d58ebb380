package held

import (
	"encoding/json"
	"os"
	"strconv"

	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

// Owner is the data of a znode about its owner. It is for operators, and it tells one
// attempt from another.
type Owner struct {
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Instance string `json:"instance"` // a client, new after every start
	Nonce    string `json:"nonce"`    // the attempt, as the caller named it
	// Try counts the creates of an instance. So (Instance, Try) is never the same twice,
	// even when a caller uses a nonce again.
	Try string `json:"try"`
}

// Identity is the owner that all znodes of a new client share.
func Identity() Owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return Owner{Host: host, PID: os.Getpid(), Instance: uuid.New()}
}

// Encode is the owner as the data of a znode.
func (o Owner) Encode() []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic("zookeeper: strings and ints always marshal: " + err.Error())
	}
	return data
}

// ParseOwner reads the data from Encode. Any other data is an owner without a name.
func ParseOwner(data []byte) Owner {
	var o Owner
	if json.Unmarshal(data, &o) != nil {
		return Owner{}
	}
	return o
}

// Same reports whether the two owners are the same try of the same client.
func (o Owner) Same(p Owner) bool {
	return o.Instance != "" && o.Instance == p.Instance && o.Try == p.Try
}

// String names the owner in errors.
func (o Owner) String() string {
	if o.Instance == "" {
		return "an unknown owner"
	}
	return o.Host + " (pid " + strconv.Itoa(o.PID) + ", instance " + o.Instance + ")"
}
