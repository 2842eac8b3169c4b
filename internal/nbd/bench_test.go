package nbd

import (
	"context"
	"fmt"
	"io"
	"testing"

	"samovar/internal/block"
)

// null is a device that does nothing, at once.
type null struct{ data *block.Buffer }

func (null) Size() uint64   { return 1 << 40 }
func (null) ReadOnly() bool { return false }
func (null) Close() error   { return nil }
func (n null) Submit(batch []*block.Request) {
	for _, r := range batch {
		if r.Op == block.Read {
			r.Data = n.data.Retain()
		}
		r.Done(r, nil)
	}
}

// nullOpener opens the same null device under every name, with reads of one length.
type nullOpener struct {
	volumes
	length int
}

func (n *nullOpener) Open(context.Context, string) (block.Device, error) {
	return null{block.NewPool().Get(n.length)}, nil
}

// BenchmarkServer is the server alone: a client that sends prepared bytes, depth requests at once.
func BenchmarkServer(b *testing.B) {
	for _, kind := range []struct {
		name   string
		cmd    command
		length int
	}{
		{"read-4k", cmdRead, 4096}, {"write-4k", cmdWrite, 4096},
		{"read-128k", cmdRead, 128 << 10}, {"write-128k", cmdWrite, 128 << 10}, {"flush", cmdFlush, 0},
	} {
		for _, depth := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/depth-%d", kind.name, depth), func(b *testing.B) {
				s := serve(b, "unix", Options{Opener: &nullOpener{length: kind.length}})
				r := s.enter(b, "x")
				var requests []byte
				for i := range depth {
					requests = append(requests, requestBytes(kind.cmd, 0, uint64(i), 0, kind.length)...)
					if kind.cmd == cmdWrite {
						requests = append(requests, make([]byte, kind.length)...)
					}
				}
				replies := make([]byte, depth*replySize)
				if kind.cmd == cmdRead {
					replies = make([]byte, depth*(replySize+kind.length))
				}
				b.SetBytes(int64(kind.length))
				b.ReportAllocs()
				sent := 0
				for b.Loop() {
					if sent%depth == 0 {
						r.send(requests)
						if _, err := io.ReadFull(r.Conn, replies); err != nil {
							b.Fatal(err)
						}
					}
					sent++
				}
				b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}

// BenchmarkClient is our client against our server, a steady depth of 32 requests.
func BenchmarkClient(b *testing.B) {
	for _, kind := range []struct {
		name string
		op   block.Op
	}{{"read-4k", block.Read}, {"write-4k", block.Write}} {
		b.Run(kind.name, func(b *testing.B) {
			const depth, length = 32, 4096
			s := serve(b, "unix", Options{Opener: &nullOpener{length: length}})
			c, err := Dial(b.Context(), s.uri("x"), "")
			if err != nil {
				b.Fatal(err)
			}
			data := block.NewPool().Get(length)
			free := make(chan *block.Request, depth)
			for range depth {
				r := &block.Request{Op: kind.op, Length: length}
				r.Done = func(r *block.Request, err error) {
					r.Data.Release()
					r.Data = nil
					free <- r
				}
				free <- r
			}
			batch := make([]*block.Request, 0, depth)
			b.SetBytes(length)
			b.ReportAllocs()
			sent := 0
			for b.Loop() {
				r := <-free
				if kind.op == block.Write {
					r.Data = data.Retain()
				}
				if batch = append(batch, r); len(free) == 0 {
					c.Submit(batch)
					batch = batch[:0]
				}
				sent++
			}
			c.Submit(batch)
			for range depth {
				<-free
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "requests/s")
			c.Close()
		})
	}
}
