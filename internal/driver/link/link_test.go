package link

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

// What holds for a session over a socket and for one within the process.
func TestLinks(t *testing.T) {
	for name, make := range map[string]ends{"conn": connEnds, "local": localEnds} {
		t.Run(name+"/order", func(t *testing.T) { t.Parallel(); testOrder(t, make) })
		t.Run(name+"/hangup", func(t *testing.T) { t.Parallel(); testHangup(t, make) })
		t.Run(name+"/far hangup", func(t *testing.T) { t.Parallel(); testFarHangup(t, make) })
		t.Run(name+"/close", func(t *testing.T) { t.Parallel(); testClose(t, make) })
		t.Run(name+"/race", func(t *testing.T) { t.Parallel(); testRace(t, make) })
	}
}

// Messages arrive in order, with their payloads, in both directions, and the slice can be used again.
func testOrder(t *testing.T, make ends) {
	o := options()
	near, far, nearIn, farIn := make(t, o)
	const n = 500
	batch := []replication.Message{}
	for id := uint64(1); id <= n; id++ {
		batch = append(batch, writeOf(o, id, 4096))
		if id%7 == 0 || id == n {
			near.Send(batch)
			clear(batch)
			batch = batch[:0]
		}
		far.Send([]replication.Message{ackOf(id)})
	}
	got := farIn.await(t, n+1, false)
	if got[0].Kind != replication.Hello || got[0].Fence.Epoch != testTarget.Epoch {
		t.Fatalf("first %+v", got[0])
	}
	for i, m := range got[1:] {
		b := m.Payload.(interface{ Bytes() []byte })
		if m.ID != uint64(i+1) || b.Bytes()[0] != byte(i+1) {
			t.Fatalf("message %d has ID %d", i+1, m.ID)
		}
	}
	for i, m := range nearIn.await(t, n, false) {
		if m.ID != uint64(i+1) || m.Kind != replication.Ack {
			t.Fatalf("answer %d has ID %d", i+1, m.ID)
		}
	}
	near.Close()
	nearIn.await(t, n, true)
	farIn.await(t, n+1, true)
}

// After a hangup everything that was sent before arrives, and nothing that was sent after it.
func testHangup(t *testing.T, make ends) {
	o := options()
	near, far, nearIn, farIn := make(t, o)
	const n = 50
	for id := uint64(1); id <= n; id++ {
		near.Send([]replication.Message{writeOf(o, id, 1<<20)})
	}
	near.Hangup()
	near.Send([]replication.Message{ackOf(99)})
	got := farIn.await(t, n+1, true)
	if len(got) != n+1 || got[n].ID != n {
		t.Fatalf("%d messages", len(got))
	}
	nearIn.await(t, 0, true)
	far.Send([]replication.Message{ackOf(1)}) // into nothing
	far.Hangup()
	far.Close()
	near.Hangup()
	near.Close()
}

func testFarHangup(t *testing.T, make ends) {
	near, far, nearIn, farIn := make(t, options())
	farIn.await(t, 1, false)
	far.Send([]replication.Message{{
		Kind: replication.Refuse, Status: fault.Fenced, Text: "no", Volume: testTarget.Volume, Pool: testTarget.Pool,
	}})
	far.Hangup()
	if got := nearIn.await(t, 1, true); got[0].Kind != replication.Refuse || got[0].Text != "no" {
		t.Fatalf("%+v", got)
	}
	near.Send([]replication.Message{ackOf(1)})
	farIn.await(t, 1, true)
}

func testClose(t *testing.T, make ends) {
	near, _, nearIn, farIn := make(t, options())
	farIn.await(t, 1, false)
	var group sync.WaitGroup
	for range 4 {
		group.Go(near.Close)
	}
	group.Wait()
	nearIn.await(t, 0, true)
	farIn.await(t, 1, true)
}

// Both ends send, hang up and close at once.
func testRace(t *testing.T, make ends) {
	o := options()
	near, far, nearIn, farIn := make(t, o)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for id := range uint64(100) {
				near.Send([]replication.Message{writeOf(o, id+1, 512)})
			}
			if i == 2 {
				near.Hangup()
			}
		})
		group.Go(func() {
			for id := range uint64(100) {
				far.Send([]replication.Message{ackOf(id + 1)})
			}
			if i == 3 {
				far.Close()
			}
		})
	}
	group.Wait()
	nearIn.await(t, 0, true)
	farIn.await(t, 1, true)
}

// A peer that never reads: hanging up ends the session all the same, and what waits for it is bounded.
func TestPeerNeverReads(t *testing.T) {
	t.Parallel()
	o := options()
	for _, test := range []struct {
		name string
		end  func(*Conn)
	}{
		{"close", (*Conn).Close},
		{"hangup", (*Conn).Hangup},
		{"flood", func(c *Conn) {
			for range 2 * queueItems {
				c.Send([]replication.Message{{Kind: replication.Ping, Volume: testTarget.Volume, Pool: testTarget.Pool}})
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, in := deafPeer(t, o)
			for id := range uint64(40) {
				c.Send([]replication.Message{writeOf(o, id+1, 1<<20)})
			}
			test.end(c)
			in.await(t, 0, true)
			select {
			case <-c.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("it does not end")
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.queue) > queueItems {
				t.Fatalf("%d messages wait", len(c.queue))
			}
		})
	}
}

// deafPeer shakes hands and reads nothing after that.
func deafPeer(t *testing.T, o Options) (*Conn, *inbox) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		if _, err := shake(nc, o, wire.Replica, time.Now().Add(5*time.Second)); err != nil {
			t.Error(err)
		}
		t.Cleanup(func() { nc.Close() })
	}()
	c, err := Dial(t.Context(), o, wire.Engine, ln.Addr().String(), testTarget)
	if err != nil {
		t.Fatal(err)
	}
	in := newInbox()
	c.Run(in, nil)
	return c, in
}

// Garbage, silence and half a handshake end that connection and nothing else; the listener ends in time.
func TestGarbage(t *testing.T) {
	t.Parallel()
	o := options()
	o.Handshake = 500 * time.Millisecond
	r := newRouter()
	address, stop := serve(t, o, r)
	for _, send := range []string{"", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("\x00", 100000), strings.Repeat("\xff", 7)} {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := io.WriteString(nc, send); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatal(err)
		}
		nc.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, nc); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("%q: %v", send[:min(8, len(send))], err)
		}
	}
	// Good preambles, then garbage; and then a session that is served beside it.
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := shake(nc, o, wire.Engine, time.Now().Add(5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(nc, strings.Repeat("garbage ", 100)); err != nil {
		t.Fatal(err)
	}
	nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, nc); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), o, wire.Engine, address, testTarget)
	if err != nil {
		t.Fatal(err)
	}
	in := newInbox()
	c.Run(in, nil)
	c.Send([]replication.Message{hello()})
	r.recv.await(t, 1, false)
	if o.Counters.Sent.Load() == 0 || o.Counters.Received.Load() == 0 {
		t.Fatal("nothing was counted")
	}
	stop()
	in.await(t, 0, true)
}

// A session that nobody takes is answered with the reason; a foreign cluster's is not opened.
func TestRefused(t *testing.T) {
	t.Parallel()
	o := options()
	r := newRouter()
	r.refuse = fault.New(fault.NotFound, "open a session", "this node has no such replica")
	address, _ := serve(t, o, r)
	for _, first := range []replication.Message{
		hello(),
		{Kind: replication.Fetch, ID: 7, Range: volume.Range{Length: 512}, Fence: hello().Fence, Volume: testTarget.Volume, Pool: testTarget.Pool},
	} {
		purpose := wire.Engine
		if first.Kind == replication.Fetch {
			purpose = wire.Copier
		}
		c, err := Dial(t.Context(), o, purpose, address, testTarget)
		if err != nil {
			t.Fatal(err)
		}
		in := newInbox()
		c.Run(in, nil)
		c.Send([]replication.Message{first})
		m := in.await(t, 1, true)[0]
		if m.Status != fault.NotFound || m.Kind != replication.Refuse && m.ID != 7 {
			t.Fatalf("%+v", m)
		}
	}
	foreign := o
	foreign.Cluster = [16]byte{8}
	if _, err := Dial(t.Context(), foreign, wire.Engine, address, testTarget); err == nil {
		t.Fatal("a session of another cluster")
	}
	_, err := Local(newInbox(), func(Link) (Receiver, error) { return nil, r.refuse })
	if kindOf(err) != fault.NotFound {
		t.Fatal(err)
	}
}

// A dial ends when it is given up, also in the middle of a handshake.
func TestDialGivenUp(t *testing.T) {
	t.Parallel()
	o := options()
	o.Handshake = time.Minute
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, o, wire.Engine, ln.Addr().String(), testTarget)
		done <- err
	}()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Fatal("it came through")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	ln.Close()
	if _, err := Dial(t.Context(), o, wire.Engine, ln.Addr().String(), testTarget); kindOf(err) != fault.Unavailable {
		t.Fatal(err)
	}
}

// What this end must not send ends the session with that reason.
func TestBadMessage(t *testing.T) {
	t.Parallel()
	r := newRouter()
	o := options()
	address, _ := serve(t, o, r)
	c, err := Dial(t.Context(), o, wire.Engine, address, testTarget)
	if err != nil {
		t.Fatal(err)
	}
	why := make(chan error, 1)
	c.Run(reasons{newInbox(), why}, nil)
	c.Send([]replication.Message{ackOf(1)}) // of a replica
	select {
	case err := <-why:
		if kindOf(err) != fault.Internal || !strings.Contains(err.Error(), "Ack") {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
}

type reasons struct {
	*inbox
	why chan error
}

func (r reasons) Closed(err error) { r.why <- err }
