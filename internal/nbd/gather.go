package nbd

import (
	"io"
	"net"
)

const (
	gatherHeaderBytes  = 16 << 10 // a thousand replies
	gatherPieces       = 1000     // below the kernel's limit of 1024 pieces in one call
	gatherPayloadBytes = 1 << 20  // more in one call would only keep finished requests' memory longer
)

// gather collects headers and payloads and sends them by one vectored write. Headers that follow each other
// become one piece. One goroutine owns it.
type gather struct {
	conn    io.Writer
	headers []byte   // fixed capacity: pieces point into it
	run     int      // where the last piece's headers start, or -1 if the last piece is a payload
	pieces  [][]byte // kept, so that nothing is allocated
	vector  net.Buffers
	payload int
}

func newGather(conn io.Writer) *gather {
	return &gather{conn: conn, headers: make([]byte, 0, gatherHeaderBytes), run: -1}
}

// header returns n bytes to be filled in. The caller has asked full before.
func (g *gather) header(n int) []byte {
	from := len(g.headers)
	g.headers = g.headers[:from+n]
	if g.run < 0 {
		g.run = from
		g.pieces = append(g.pieces, nil)
	}
	g.pieces[len(g.pieces)-1] = g.headers[g.run:]
	return g.headers[from:]
}

// data adds a payload, which must stay as it is until send returns.
func (g *gather) data(b []byte) {
	g.pieces = append(g.pieces, b)
	g.run = -1
	g.payload += len(b)
}

// full tells that it is time to send.
func (g *gather) full() bool {
	return cap(g.headers)-len(g.headers) < requestSize || len(g.pieces) >= gatherPieces-2 ||
		g.payload >= gatherPayloadBytes
}

// empty tells that there is nothing to send.
func (g *gather) empty() bool { return len(g.pieces) == 0 }

// send writes everything and forgets it.
func (g *gather) send() error {
	var err error
	switch len(g.pieces) {
	case 0:
	case 1:
		_, err = g.conn.Write(g.pieces[0])
	default:
		g.vector = g.pieces // WriteTo eats its slice; pieces keeps the memory
		_, err = g.vector.WriteTo(g.conn)
	}
	clear(g.pieces)
	g.pieces, g.headers, g.run, g.payload = g.pieces[:0], g.headers[:0], -1, 0
	return err
}
