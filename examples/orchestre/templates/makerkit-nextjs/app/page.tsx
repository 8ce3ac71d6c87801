import { SignIn } from "@/components/sign-in";
import { currentUser } from "@/lib/supabase";

export default async function Home() {
  const user = await currentUser();
  return (
    <main>
      <h1>{{projectName}}</h1>
      {user ? <p>Signed in as {user.email}</p> : <SignIn />}
    </main>
  );
}
