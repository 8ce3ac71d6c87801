// A peer of the Orchestra plugin protocol on quic-go and Go's own TLS, X.509 and protobuf: what upstream's programs are made of.
//
//	peer serve CERTS NAME             answer tool calls with their arguments as JSON in `text`; READY ADDRESS on stderr
//	peer call  CERTS NAME ADDRESS FIN COUNT SIZE
//	peer load  CERTS NAME ADDRESS WRITES IN_FLIGHT SECONDS
//
// call makes COUNT tool calls one after the other, each with a text of SIZE bytes, and prints how many came back as they went.
// With NAME "-" no certificate is shown. With FIN "late" a stream's end is sent 5 ms after its last byte.
//
// load makes tool calls with a text of 100 bytes, IN_FLIGHT at a time, and prints how many, and the CPU time of this process in microseconds.
// With WRITES "apart" header, payload and end are written one after the other, as upstream does, so late that each is sent by itself;
// with "whole" the frame is one write, and its end follows at once.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const limit = 16 << 20

// Between two writes that must not travel together: quic-go sends what it has within microseconds.
const between = 100 * time.Microsecond

func main() {
	log.SetFlags(0)
	switch os.Args[1] {
	case "serve":
		serve(os.Args[2], os.Args[3])
	case "call":
		count, _ := strconv.Atoi(os.Args[6])
		size, _ := strconv.Atoi(os.Args[7])
		call(os.Args[2], os.Args[3], os.Args[4], os.Args[5] == "late", count, size)
	case "load":
		inFlight, _ := strconv.Atoi(os.Args[6])
		seconds, _ := strconv.ParseFloat(os.Args[7], 64)
		load(os.Args[2], os.Args[3], os.Args[4], os.Args[5] == "apart", inFlight, seconds)
	}
}

func settings(certs, name string) *tls.Config {
	pem, err := os.ReadFile(filepath.Join(certs, "ca.crt"))
	check(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatal("no authority")
	}
	made := &tls.Config{
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13, NextProtos: []string{"orchestra-plugin"},
	}
	if name != "-" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(certs, name+".crt"), filepath.Join(certs, name+".key"))
		check(err)
		made.Certificates = []tls.Certificate{pair}
	}
	return made
}

func read(from io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > limit {
		return nil, fmt.Errorf("a frame of %d bytes", size)
	}
	payload := make([]byte, size)
	_, err := io.ReadFull(from, payload)
	return payload, err
}

func framed(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// field gives the last length-delimited field of a number, and nil if there is none.
func field(message []byte, number protowire.Number) []byte {
	var found []byte
	for len(message) > 0 {
		at, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if at == number && kind == protowire.BytesType {
			value, taken := protowire.ConsumeBytes(message)
			if taken < 0 {
				return nil
			}
			found, message = append([]byte{}, value...), message[taken:]
			continue
		}
		taken := protowire.ConsumeFieldValue(at, kind, message)
		if taken < 0 {
			return nil
		}
		message = message[taken:]
	}
	return found
}

func bytesField(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func serve(certs, name string) {
	listener, err := quic.ListenAddr("127.0.0.1:0", settings(certs, name), &quic.Config{MaxIdleTimeout: 5 * time.Minute})
	check(err)
	fmt.Fprintln(os.Stderr, "READY", listener.Addr())
	for {
		connection, err := listener.Accept(context.Background())
		check(err)
		go func() {
			for {
				stream, err := connection.AcceptStream(context.Background())
				if err != nil {
					return
				}
				go answer(stream)
			}
		}()
	}
}

// answer reads one frame, not the end of the stream, and writes one.
func answer(stream quic.Stream) {
	defer stream.Close()
	request, err := read(stream)
	if err != nil {
		log.Println("a request:", err)
		return
	}
	response := bytesField(nil, 1, field(request, 1))
	asked := field(request, 20)
	var arguments structpb.Struct
	if err := proto.Unmarshal(field(asked, 2), &arguments); err != nil {
		response = bytesField(response, 20, bytesField(nil, 4, []byte(err.Error())))
	} else {
		text, err := json.Marshal(arguments.AsMap())
		check(err)
		result, err := structpb.NewStruct(map[string]any{"text": string(text)})
		check(err)
		data, err := proto.Marshal(result)
		check(err)
		called := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
		called = bytesField(called, 2, data)
		if exact := field(asked, 1000); exact != nil { // as a peer passes on what it does not know
			called = bytesField(called, 1000, exact)
		}
		response = bytesField(response, 20, called)
	}
	_, err = stream.Write(framed(response))
	if err != nil {
		log.Println("a response:", err)
	}
}

func call(certs, name, address string, late bool, count, size int) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	connection, err := quic.DialAddr(ctx, address, settings(certs, name), &quic.Config{KeepAlivePeriod: 15 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	arguments, err := structpb.NewStruct(map[string]any{"name": strings.Repeat("x", size)})
	check(err)
	data, err := proto.Marshal(arguments)
	check(err)
	done := 0
	for ; done < count; done++ {
		stream, err := connection.OpenStreamSync(ctx)
		if err != nil {
			log.Fatalf("after %d: %v", done, err)
		}
		asked := bytesField(bytesField(nil, 1, []byte("greet")), 2, data)
		request := bytesField(bytesField(nil, 1, []byte(fmt.Sprintf("go-%d", done))), 20, asked)
		_, err = stream.Write(framed(request))
		check(err)
		if late {
			time.Sleep(5 * time.Millisecond)
		}
		stream.Close()
		response, err := read(stream)
		if err != nil {
			log.Fatalf("after %d: %v", done, err)
		}
		if _, err := io.ReadAll(stream); err != nil {
			log.Fatalf("after %d: %v", done, err)
		}
		if string(field(response, 1)) != fmt.Sprintf("go-%d", done) {
			log.Fatalf("the id of another: %q", field(response, 1))
		}
		var result structpb.Struct
		check(proto.Unmarshal(field(field(response, 20), 2), &result))
		if result.Fields["text"].GetStringValue() != "Hello, "+strings.Repeat("x", size)+"!" {
			log.Fatalf("not what was asked for: %.200v", &result)
		}
	}
	fmt.Println(done)
	connection.CloseWithError(0, "client closed")
}

func load(certs, name, address string, apart bool, inFlight int, seconds float64) {
	ctx := context.Background()
	connection, err := quic.DialAddr(ctx, address, settings(certs, name), &quic.Config{KeepAlivePeriod: 15 * time.Second})
	check(err)
	arguments, err := structpb.NewStruct(map[string]any{"text": strings.Repeat("x", 100)})
	check(err)
	data, err := proto.Marshal(arguments)
	check(err)
	asked := bytesField(bytesField(nil, 1, []byte("echo")), 2, data)
	var count atomic.Int64
	one := func(number int) {
		stream, err := connection.OpenStreamSync(ctx)
		check(err)
		id := fmt.Sprintf("00000000-0000-7000-8000-%012d", number)
		frame := framed(bytesField(bytesField(nil, 1, []byte(id)), 20, asked))
		if apart {
			_, err = stream.Write(frame[:4])
			check(err)
			time.Sleep(between)
			_, err = stream.Write(frame[4:])
			time.Sleep(between)
		} else {
			_, err = stream.Write(frame)
		}
		check(err)
		stream.Close()
		response, err := read(stream)
		check(err)
		if string(field(response, 1)) != id {
			log.Fatalf("the id of another: %q", field(response, 1))
		}
		_, err = io.ReadAll(stream)
		check(err)
		count.Add(1)
	}
	one(0)
	before := cpu()
	count.Store(0)
	var group sync.WaitGroup
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for caller := range inFlight {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := 1; time.Now().Before(end); number++ {
				one(caller*1_000_000 + number)
			}
		}()
	}
	group.Wait()
	fmt.Println(count.Load(), (cpu() - before).Microseconds())
	connection.CloseWithError(0, "client closed")
}

// cpu gives the CPU time of this process so far.
func cpu() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
