package zookeeper

import (
	"encoding/json"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Places in one line that a Multi takes together have one czxid in common. What
// tells their fences apart is the seat: how many writes were in front in the Multi.
// Later Multis have later czxids, and the servers number the places of one in the
// order of their seats, so that fences grow from one place in line to the next.
//
// The seat is known when the Multi is put together, and every Multi that a write is
// sent with gives it another one. It goes into the place's data, for those who look
// it up: participants, observers, and the owner itself after a lost reply.

// seatBits is how many bits of a fence the seat has: as many as maxBatch needs. The
// others are the czxid's, of which the servers' epoch is the upper half: they last
// for 2^25 elections of a leader, and as signed numbers for half as many.
const seatBits = 7

// placeFence is the fence of a place in line. Its domain is not that of plain locks,
// since those have the czxid itself for a token.
func (s *session) placeFence(czxid int64, seat int) idem.Fence {
	return idem.Fence{Domain: s.domain + lineDomain, Token: uint64(czxid)<<seatBits | uint64(seat)}
}

// lineDomain follows the ensemble's domain; a root (domainOf) begins with a slash.
const lineDomain = ":line"

// seated returns what writes a seat into the data of a create; nil where that is not
// an owner's, and there can be no other place of the line in the Multi.
func seated(req *zk.CreateRequest) func(seat int) {
	owner := req.Data
	if len(owner) < 2 || owner[len(owner)-1] != '}' {
		return nil
	}
	return func(seat int) {
		req.Data = owner
		if seat > 0 {
			data := append(make([]byte, 0, len(owner)+16), owner[:len(owner)-1]...)
			req.Data = append(strconv.AppendInt(append(data, `,"seat":`...), int64(seat), 10), '}')
		}
	}
}

// seatOf reads what seated wrote.
func seatOf(data []byte) int {
	var o struct {
		Seat int `json:"seat"`
	}
	if json.Unmarshal(data, &o) != nil || o.Seat < 0 || o.Seat >= 1<<seatBits {
		return 0
	}
	return o.Seat
}
