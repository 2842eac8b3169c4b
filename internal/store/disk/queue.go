package disk

import "errors"

// Queue carries out requests on files of one file system, many at a time. It is the second way to a disk, beside
// the calls of File: one call begins a whole batch, and no thread waits for each of its requests.
//
// Requests go on in any order. That no two of them get in each other's way is up to the caller, as with calls.
type Queue interface {
	// Submit begins a batch. Its requests, and what they point to, belong to the queue until done is called with
	// them. There must never be more of them under way than the queue was opened for.
	Submit(batch *Request)
	// Close waits until every request is done, and frees the queue. Nothing may be submitted after it.
	Close() error
}

// Queues is what a file system is besides FS if it can have queues.
type Queues interface {
	// OpenQueue makes a queue for at most depth requests under way. done is called with requests that ended, a
	// batch in no order, from any goroutine, possibly before Submit has returned. It must not block, nor close
	// the queue; it may submit requests, also those that it was called with. ErrNoQueue: there is no such thing
	// here, for the reason that it is wrapped with.
	OpenQueue(depth int, done func(batch *Request)) (Queue, error)
}

// RequestCode is what a Request asks for.
type RequestCode uint8

// The requests.
const (
	QueueRead  RequestCode = 1 // fill the one piece, as File.ReadAt
	QueueWrite RequestCode = 2 // write the pieces, as File.WriteVector; durable as File.WriteAt
	QueueSync  RequestCode = 3 // as File.Sync; covers what was done before it was submitted
)

// Request is one read, write or sync of a file. Its memory is the caller's, to use again when it is done.
type Request struct {
	Next    *Request // in its batch
	Code    RequestCode
	Durable bool
	File    File
	Offset  int64
	Pieces  [][]byte // none empty, at most LargestVector, one behind the other in the file
	Tag     int      // the caller's
	// Err is the outcome. ErrAgain: the request was not, or only partly, carried out for a reason that says
	// nothing about the disk; a call of File will tell.
	Err error

	vector kernelVector // of the native queue: read by the kernel while the request is under way
	length int          // of all pieces
}

// LargestVector is how many pieces a request may have: IOV_MAX of Linux.
const LargestVector = 1024

// ErrAgain asks to repeat a request by a call of File.
var ErrAgain = errors.New("the queue could not do it now")

// ErrNoQueue tells that there are no queues here.
var ErrNoQueue = errors.New("there is no queue")
