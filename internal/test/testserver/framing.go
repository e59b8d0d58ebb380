package testserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// framing cuts a byte stream into the messages of one protocol. Frames are read
// by one goroutine per direction.
type framing interface {
	// read returns the next whole frame, exactly as it is to be forwarded.
	read(r *bufio.Reader) ([]byte, error)
	// request describes the n-th frame (from 0) of a client.
	request(frame []byte, n int) Request
	// reply returns the ID of the answered request. n counts the
	// answers so far. ok is false for frames that a server sends unasked.
	reply(frame []byte, n int) (id int64, ok bool)
}

// rawFraming takes every chunk of bytes as a frame.
type rawFraming struct{}

func (rawFraming) read(r *bufio.Reader) ([]byte, error) {
	if _, err := r.Peek(1); err != nil {
		return nil, err
	}
	chunk := make([]byte, r.Buffered())
	_, err := io.ReadFull(r, chunk)
	return chunk, err
}

func (rawFraming) request(frame []byte, _ int) Request { return Request{Payload: frame} }
func (rawFraming) reply([]byte, int) (int64, bool)     { return 0, true }

// poolerFraming is rawFraming for a client of [PgBouncer]. It ends a connection that asks to cancel a
// statement, as if that request were lost.
type poolerFraming struct{ rawFraming }

// cancelRequest is how a request to cancel begins: its length and its code
// (https://www.postgresql.org/docs/current/protocol-message-formats.html).
var cancelRequest = []byte{0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e}

func (f poolerFraming) read(r *bufio.Reader) ([]byte, error) {
	frame, err := f.rawFraming.read(r)
	if bytes.HasPrefix(frame, cancelRequest) {
		return nil, io.EOF
	}
	return frame, err
}

// redisFraming counts, since Redis answers in the order of the requests. It does not
// follow subscriptions in RESP2 and MONITOR, because their messages look like answers.
type redisFraming struct{}

func (redisFraming) read(r *bufio.Reader) ([]byte, error) {
	p := respReader{r: r}
	err := p.value()
	return p.raw, err
}

func (redisFraming) request(frame []byte, n int) Request {
	return Request{Payload: frame, id: int64(n)}
}

func (redisFraming) reply(frame []byte, n int) (int64, bool) {
	return int64(n), len(frame) > 0 && frame[0] != '>' // RESP3 push
}

const (
	// zkMaxFrame is far above jute.maxbuffer and below any four-letter word
	// read as a length.
	zkMaxFrame = 64 << 20
	// zkConnectID stands for the handshake, whose frames have no xid.
	zkConnectID = math.MinInt64
)

// zkFraming reads frames with a 4-byte length. Requests begin with xid and opcode,
// answers with the xid. The first frame of each side is the handshake. Four-letter
// commands are no frames and pass in chunks.
type zkFraming struct{}

func (zkFraming) read(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(4)
	if err != nil {
		if r.Buffered() > 0 && errors.Is(err, io.EOF) {
			return rawFraming{}.read(r)
		}
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > zkMaxFrame {
		return rawFraming{}.read(r)
	}
	frame := make([]byte, 4+n)
	_, err = io.ReadFull(r, frame)
	return frame, err
}

func (zkFraming) request(frame []byte, n int) Request {
	payload := frame[min(4, len(frame)):]
	if n == 0 {
		return Request{Op: OpConnect, Payload: payload, id: zkConnectID}
	}
	if len(payload) < 8 {
		return Request{Payload: payload}
	}
	return Request{
		id:      int64(int32(binary.BigEndian.Uint32(payload))),
		Op:      int32(binary.BigEndian.Uint32(payload[4:])),
		Payload: payload,
	}
}

func (zkFraming) reply(frame []byte, n int) (int64, bool) {
	if n == 0 {
		return zkConnectID, true
	}
	if len(frame) < 8 {
		return 0, false
	}
	xid := int64(int32(binary.BigEndian.Uint32(frame[4:])))
	return xid, xid != -1 // -1: a watch event
}
