package etcd

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands between a client and a member, and loses what it is told to lose without closing a connection: the
// peer looks as if its machine had vanished.
type proxy struct {
	listener net.Listener
	target   string
	group    sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond
	closed bool
	stop   [2]bool // toMember, toClient: hold bytes back
	sent   [2]int  // bytes passed on, per direction
	conns  map[net.Conn]bool
}

const (
	toMember = 0
	toClient = 1
)

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.change = sync.NewCond(&p.mu)
	p.group.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.track(client)
		p.group.Go(func() {
			defer client.Close()
			member, err := net.Dial("tcp", p.target)
			if err != nil {
				return
			}
			defer member.Close()
			p.track(member)
			var pair sync.WaitGroup
			pair.Go(func() { p.copy(member, client, toMember); member.Close() })
			pair.Go(func() { p.copy(client, member, toClient); client.Close() })
			pair.Wait()
		})
	}
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.closed {
		c.Close()
	}
}

func (p *proxy) copy(to io.Writer, from io.Reader, direction int) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		for p.stop[direction] && !p.closed {
			p.change.Wait()
		}
		p.sent[direction] += n
		p.mu.Unlock()
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			return
		}
	}
}

// hold stops or lets go the two directions.
func (p *proxy) hold(member, client bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = [2]bool{member, client}
	p.change.Broadcast()
}

// cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

func (p *proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.change.Broadcast()
	p.mu.Unlock()
	p.cut()
	p.group.Wait()
}
