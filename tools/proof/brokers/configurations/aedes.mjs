// A broker of aedes on loopback, with what it keeps in a folder. One argument: its settings, in JSON.
import { createServer } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import { readFileSync } from "node:fs";
import { Aedes } from "aedes";
import persistenceLevel from "aedes-persistence-level";
import { ClassicLevel } from "classic-level";

const settings = JSON.parse(process.argv[2]);
const database = new ClassicLevel(settings.directory, { valueEncoding: "binary", keyEncoding: "utf8" });
const broker = await Aedes.createBroker({
  persistence: persistenceLevel(database),
  authenticate: (client, user, password, done) => {
    if (user === settings.user && String(password) === settings.password) done(null, true);
    else done(Object.assign(new Error("not authorized"), { returnCode: 4 }), false);
  },
});
createServer(broker.handle).listen(settings.port, "127.0.0.1");
if (settings.tls_port) {
  const pair = { cert: readFileSync(settings.certificate), key: readFileSync(settings.key) };
  createTlsServer(pair, broker.handle).listen(settings.tls_port, "127.0.0.1");
}
