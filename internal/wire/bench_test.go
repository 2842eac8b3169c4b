package wire

import (
	"fmt"
	"io"
	"net"
	"testing"

	"samovar/internal/block"
	"samovar/internal/replication"
)

// loop is a stream in memory: what one batch wrote is read back.
type loop struct{ data []byte }

func (l *loop) Write(b []byte) (int, error) {
	l.data = append(l.data, b...)
	return len(b), nil
}

func (l *loop) Read(b []byte) (int, error) {
	n := copy(b, l.data)
	if l.data = l.data[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func benchMessages(pool *block.Pool, s Session, n, count int) []replication.Message {
	msgs := make([]replication.Message, count)
	for i := range msgs {
		msgs[i] = replication.Message{Kind: replication.Write, ID: uint64(i), Volume: s.Volume, Pool: s.Pool,
			Payload: pool.Get(n)}
		msgs[i].Range.Offset, msgs[i].Range.Length = uint64(i*n), uint64(n)
		clear(msgs[i].Payload.(*block.Buffer).Bytes())
	}
	return msgs
}

func appendAll(b *testing.B, e *Encoder, msgs []replication.Message) {
	for i := range msgs {
		msgs[i].Payload.(*block.Buffer).Retain()
		if err := e.Append(&msgs[i]); err != nil {
			b.Fatal(err)
		}
	}
}

func takeAll(b *testing.B, d *Decoder, count int) {
	for count > 0 {
		batch, err := d.Next()
		if err != nil {
			b.Fatal(err)
		}
		for i := range batch {
			batch[i].Payload.(*block.Buffer).Release()
		}
		count -= len(batch)
	}
}

// Encode, copy through memory in place of a socket, decode. One op is one message.
func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct{ size, batch int }{{4 << 10, 32}, {4 << 10, 1}, {64 << 10, 8}, {1 << 20, 1}} {
		b.Run(fmt.Sprintf("%dKiB-by-%d", c.size>>10, c.batch), func(b *testing.B) {
			pool := block.NewPool()
			from, to := pair(replication.Write)
			stream := &loop{}
			memory := make([]byte, 0, 4<<20)
			e, d := NewEncoder(from), NewDecoder(stream, pool, to)
			msgs := benchMessages(pool, from, c.size, c.batch)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			for i := 0; i < b.N; i += c.batch {
				stream.data = memory
				appendAll(b, e, msgs)
				if err := e.Flush(stream); err != nil {
					b.Fatal(err)
				}
				takeAll(b, d, c.batch)
			}
		})
	}
}

// Encode alone: headers, sums, pieces.
func BenchmarkEncode(b *testing.B) {
	pool := block.NewPool()
	from, _ := pair(replication.Write)
	e, msgs := NewEncoder(from), benchMessages(pool, from, 4096, 32)
	b.SetBytes(4096)
	b.ReportAllocs()
	for i := 0; i < b.N; i += 32 {
		appendAll(b, e, msgs)
		e.Batch()
		e.Done()
	}
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{100, 4096, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				checksum(data)
			}
		})
	}
}

// One direction over a TCP connection of the loopback, receiver in another goroutine.
func BenchmarkTCP(b *testing.B) {
	for _, c := range []struct{ size, batch int }{{4 << 10, 32}, {1 << 20, 1}} {
		b.Run(fmt.Sprintf("%dKiB-by-%d", c.size>>10, c.batch), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Skip(err)
			}
			defer l.Close()
			out, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer out.Close()
			in, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			defer in.Close()
			pool := block.NewPool()
			from, to := pair(replication.Write)
			e, msgs := NewEncoder(from), benchMessages(pool, from, c.size, c.batch)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			done := make(chan struct{})
			go func() {
				defer close(done)
				takeAll(b, NewDecoder(in, pool, to), (b.N+c.batch-1)/c.batch*c.batch)
			}()
			for i := 0; i < b.N; i += c.batch {
				appendAll(b, e, msgs)
				if err := e.Flush(out); err != nil {
					b.Fatal(err)
				}
			}
			<-done
		})
	}
}

// A write costs no memory but the pooled buffer of its payload.
func TestNoAllocations(t *testing.T) {
	pool := block.NewPool()
	from, to := pair(replication.Write)
	stream := &loop{}
	memory := make([]byte, 0, 1<<20)
	e, d := NewEncoder(from), NewDecoder(stream, pool, to)
	msgs := benchMessages(pool, from, 4096, 32)
	run := func() {
		stream.data = memory
		for i := range msgs {
			msgs[i].Payload.(*block.Buffer).Retain()
			if err := e.Append(&msgs[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Flush(stream); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 32; {
			batch, err := d.Next()
			if err != nil {
				t.Fatal(err)
			}
			for i := range batch {
				batch[i].Payload.(*block.Buffer).Release()
			}
			got += len(batch)
		}
	}
	// The race detector makes pools forget on purpose; a whole batch must stay under one buffer each.
	limit := 0.0
	if raceEnabled {
		limit = 32 * 3
	}
	if n := testing.AllocsPerRun(100, run); n > limit {
		t.Errorf("%v allocations for 32 writes", n)
	}
}
